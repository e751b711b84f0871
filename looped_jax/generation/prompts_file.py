"""Many prompts from a file, and their results in another: a line for each, in the same order.

Results are kept as they come, beside the file that will hold them all: a call that was interrupted
goes on with those that are missing. A text does not depend on which others are written with it.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from looped_jax.errors import UserError
from looped_jax.files import write_bytes
from looped_jax.generation.generator import Result

# What the results that have come so far lie in, beside the file that will hold all.
PART = ".part"


def read_prompts(path: Path) -> list[str]:
    """One prompt a line: plain text, or with the ending .jsonl objects that have a "prompt".

    Raises:
      UserError: the file cannot be read, is empty, or has a line without a prompt.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read prompts from {path}: {error}") from error
    if not lines:
        raise UserError(f"{path} has no line; allowed: one prompt a line")
    if path.suffix != ".jsonl":
        return lines
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, TypeError, KeyError):
            prompt = None
        if not isinstance(prompt, str):
            raise UserError(f'{path}, line {number}: allowed: an object with "prompt": TEXT')
        prompts.append(prompt)
    return prompts


class ResultsFile:
    """Results as JSON lines: numbers of prompts in, prompt, text, tokens, finish, loops."""

    def __init__(self, path: Path, prompts: Sequence[str], call: dict[str, Any]):
        """`call` is what else decides the texts; results of another call are not gone on with."""
        self._path, self._part = path, path.with_name(path.name + PART)
        self._prompts, self._head = prompts, json.dumps({"call": call, "prompts": list(prompts)})
        self._found = dict(self._read())

    @property
    def missing(self) -> list[int]:
        """Numbers of the prompts that have no result yet."""
        return [i for i in range(len(self._prompts)) if i not in self._found]

    def _read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if not self._part.exists():
            return
        head, *lines = self._part.read_text("utf-8").split("\n")
        if head != self._head:
            raise UserError(
                f"{self._part} holds results of another call: repeat that one, or remove the file"
            )
        for line in lines[:-1]:  # what follows the last line's end was cut off while written
            number, result = json.loads(line)
            yield number, result

    def add(self, results: Iterator[tuple[int, Result]]) -> Iterator[Result]:
        """Keeps results as they come, by number of the prompt, and hands them on."""
        whole = [self._head, *(json.dumps(pair) for pair in self._found.items()), ""]
        write_bytes(self._part, "\n".join(whole).encode())
        with open(self._part, "a", encoding="utf-8") as file:
            for number, result in results:
                self._found[number] = dataclasses.asdict(result)
                file.write(json.dumps([number, self._found[number]]) + "\n")
                file.flush()
                yield result

    def finish(self) -> list[dict[str, Any]]:
        """Writes all results in the order of the prompts, and returns them."""
        results = [self._found[i] for i in range(len(self._prompts))]
        lines = [json.dumps(result, ensure_ascii=False) + "\n" for result in results]
        write_bytes(self._path, "".join(lines).encode())
        os.remove(self._part)
        return results
