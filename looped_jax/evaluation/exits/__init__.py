"""Exit policies: when tokens may stop, what runs then, and what it saves and loses."""
