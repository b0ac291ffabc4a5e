"""`gangline completion`"""

from __future__ import annotations

import click

from ...console.output import echo

_SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", hidden=True)
def command(shell: str, debug: bool) -> None:
    """Print the completion script of a shell: commands, options, and the names of pools, workers, jobs, gangs,
    schedules and contexts.

    \b
    bash, in ~/.bashrc (needs bash 4.4):
        eval "$(gangline completion bash)"
    zsh, in ~/.zshrc, after compinit:
        eval "$(gangline completion zsh)"
    fish, once:
        gangline completion fish > ~/.config/fish/completions/gangline.fish

    Names are asked for at the server that the command line, the environment or the context of the nats CLI names. If
    that does not answer within a second, nothing is completed.
    """
    from click.shell_completion import get_completion_class

    from ...app import gangline

    found = get_completion_class(shell)
    assert found is not None, shell
    echo(found(gangline, {}, "gangline", "_GANGLINE_COMPLETE").source())
