"""The command line: `roundhouse` in the image, `python -m entrypoint` in a checkout."""

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from entrypoint import launch, report
from entrypoint.eject import eject as copy_recipe
from entrypoint.environment import Environment, read_environment
from entrypoint.errors import OWN_BUG, NodesError, Problem
from entrypoint.facts import Facts
from entrypoint.names import resolve
from entrypoint.plan import DEFAULT_VOLUME, Plan, make_plan
from entrypoint.probe import probe
from entrypoint.recipes import Recipe, choose_recipe, refuse_wrong_options, split_arguments
from entrypoint.request import read_request

_BUILD = Path(__file__).resolve().parent.parent / "build.json"  # the image has one, a checkout has not
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@dataclass(frozen=True, slots=True)
class Context:
    """The only place that knows the process environment and the working directory."""

    variables: Mapping[str, str]
    base: Path


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def cli(context: click.Context) -> None:
    """Take a training script from a laptop to a cluster without editing it."""
    context.obj = Context(dict(os.environ), Path.cwd())


@cli.command(context_settings=_PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE [ARGUMENT]...")
@click.pass_obj
def train(context: Context, words: tuple[str, ...]) -> None:
    """Plan, check and run a recipe or a script; the exit code is the training's."""
    plan, facts = _plan(context, words, may_wait=True)
    if not plan.process_rank:  # of many processes, one tells
        click.echo(report.to_text(plan, facts))
    sys.exit(launch.run(plan, context.variables))


@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="for programs")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE [ARGUMENT]...]")
@click.pass_obj
def plan(context: Context, as_json: bool, words: tuple[str, ...]) -> None:
    """Print what would be done, with the reasons; change nothing."""
    as_json = as_json or words[-1:] == ("--json",)
    made, facts = _plan(context, words[:-1] if words[-1:] == ("--json",) else words, may_wait=False)
    click.echo(report.to_json(made) if as_json else report.to_text(made, facts))


@cli.command()
@click.argument("recipe")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.pass_obj
def eject(context: Context, recipe: str, folder: Path) -> None:
    """Copy a recipe and what it imports into a folder of yours."""
    for path in copy_recipe(recipe, context.base / folder):
        click.echo(f"wrote {path}")


def _plan(context: Context, words: tuple[str, ...], *, may_wait: bool) -> tuple[Plan, Facts]:
    request = read_request(context.variables)
    wait_seconds = request.wait_seconds if may_wait else 0
    if words[:1] == ("-m",):  # as Python takes it; TRAIN_SCRIPT holds both words in one
        words = (" ".join(words[:2]), *words[2:])
    script, *arguments = words or ((request.script,) if request.script else (None,))
    recipe: Recipe | None = None
    if script is not None:
        given = tuple(arguments) if words else split_arguments(request.arguments)
        recipe = choose_recipe(script, given, base=context.base)
    environment = read_environment(context.variables)
    facts = _look(context.base / (request.volume or DEFAULT_VOLUME), environment, wait_seconds)
    made = make_plan(
        environment, facts, request, recipe, variables=context.variables, base=context.base, in_image=_BUILD.exists()
    )
    if recipe is not None:
        refuse_wrong_options(recipe, made.cluster.world_size)
    return made, facts


def _look(volume: Path, environment: Environment, wait_seconds: float) -> Facts:
    """The facts, with the route to the primary under the name that the environment gave it."""
    name = environment.primary_address
    if name is None or environment.nodes == 1:
        return probe(volume)
    try:
        address = resolve(name, wait_seconds=wait_seconds, say=lambda line: click.echo(line, err=True))
    except NodesError:
        if wait_seconds:
            raise
        return probe(volume)  # a plan is shown all the same; its network then rests on what else is known
    facts = probe(volume, targets=(address,))
    return replace(facts, routes=tuple((name, source) for _, source in facts.routes))


def main() -> None:
    """Run the command; a Problem is one line and its fix, anything else our own bug."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(78)
    except click.Abort:
        sys.exit(130)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except Exception:
        traceback.print_exc()
        print(f"error: this is a bug of ours (exit code {OWN_BUG}); please report the lines above", file=sys.stderr)
        sys.exit(OWN_BUG)


if __name__ == "__main__":
    main()
