"""The version of the project; pyproject.toml reads it here."""

VERSION = "0.1.0"
