"""What the demo shows: a story with numbers. A progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

PLAIN_STEPS = 4
"""Without a terminal, a long step prints so many lines on its way."""

Tick = Callable[[int], None]
"""Called with how many more are done."""


class Screen:
    """Writes to stdout. Everything that is not markup of ours is escaped."""

    def __init__(self, console: Console | None = None) -> None:
        terminal = sys.stdout.isatty()
        self.console = console or Console(highlight=False, width=None if terminal else 110)

    def title(self, text: str) -> None:
        """A new part of the story."""
        self.console.print()
        self.console.print(f"[bold cyan]{escape(text)}[/]")

    def say(self, text: str) -> None:
        """What happens now, and why."""
        self.console.print(f"  {escape(text)}", soft_wrap=False)

    def note(self, text: str) -> None:
        """An aside."""
        self.console.print(f"  [dim]{escape(text)}[/]")

    def event(self, text: str) -> None:
        """Something we do to the system."""
        self.console.print(f"  [yellow]! {escape(text)}[/]")

    def good(self, text: str) -> None:
        self.console.print(f"  [green]ok[/]    {escape(text)}")

    def bad(self, text: str) -> None:
        self.console.print(f"  [bold red]FAIL[/]  {escape(text)}")

    def show(self, renderable: RenderableType) -> None:
        self.console.print(renderable)

    def last(self, text: str, *, ok: bool) -> None:
        """The last line; unstyled text, so that it can be looked for."""
        self.console.print()
        self.console.print(escape(text), style="bold green" if ok else "bold red", soft_wrap=True)

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator[Tick]:
        """A step of `total` parts; the block calls the given function as they are done."""
        if self.console.is_terminal:
            with self._bar() as bar:
                task = bar.add_task(text, total=total)
                yield lambda done: bar.advance(task, done)
        else:
            yield self._lines(text, total)

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    def _lines(self, text: str, total: int) -> Tick:
        state = [0, 0]

        def tick(done: int) -> None:
            state[0] += done
            step = state[0] * PLAIN_STEPS // total if total else PLAIN_STEPS
            if step > state[1]:
                state[1] = step
                self.console.print(f"  {escape(text)}: {state[0]} of {total}")

        return tick
