"""`gangline init`: what it writes runs."""

from __future__ import annotations

import click
import pytest
import yaml

from gangline.cli.app import COMMANDS, gangline

from ..support.rows import case
from ..waiting import PATIENCE_S

FILES = {"images.py", "test_images.py", "Dockerfile", "compose.yaml", ".dockerignore"}


@pytest.fixture
def project(invoke, tmp_path):
    """A folder with a new project."""
    done = invoke("init", str(tmp_path / "shop"), "--pool", "images")
    assert done.exit_code == 0, done.output
    return tmp_path / "shop"


def test_a_project_has_a_pool_a_test_and_what_containers_need(project):
    assert {file.name for file in project.iterdir()} == FILES
    for file in project.iterdir():
        assert "$" not in file.read_text().replace("${GANGLINE_IMAGE}", ""), file


@pytest.mark.long
@pytest.mark.processes
def test_its_test_passes(project, forks):
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_images.py")
    done = forks.run(command, cwd=project, timeout=PATIENCE_S)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.server
@pytest.mark.processes
def test_its_pool_is_served_and_called_as_it_says(commands, project):
    commands.folder = project
    commands.started("worker", "images:pool")
    assert commands.run("call", "images.count", "text=a b c").stdout == "3\n"
    assert commands.run("call", "images.slowly", "text=a b", "pause_s=0", "--stream").stdout == '"a"\n"b"\n'


def test_its_compose_file_starts_commands_that_exist(project):
    services = yaml.safe_load((project / "compose.yaml").read_text())["services"]
    assert set(services) == {"nats", "gateway", "coordinator", "dispatcher", "worker"}
    for name, service in services.items():
        if name == "nats":
            continue
        command, *arguments = service["command"]
        assert command in COMMANDS
        found = gangline.get_command(click.Context(gangline), command)
        assert found is not None
        found.make_context(command, list(arguments), resilient_parsing=False)
    assert services["worker"]["command"] == ["worker", "images:pool"]


def test_what_exists_is_left_alone(invoke, project):
    (project / "images.py").write_text("mine")
    (project / "Dockerfile").unlink()
    done = invoke("init", str(project), "--pool", "images")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "images.py" in done.stderr and "already in" in done.stderr
    assert (project / "images.py").read_text() == "mine" and not (project / "Dockerfile").exists()


def test_a_name_that_is_no_module_is_refused(invoke, tmp_path):
    for name in ["Images", "a-b", "9a", "class", "a.b", "../x", ""]:
        with case(name):
            done = invoke("init", str(tmp_path / "x"), "--pool", name)
            assert done.exit_code == 2 and "cannot be a" in done.stderr
            assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("pool", "said"), [("asyncio", "uses that name"), ("class", "uses that name"), ("A-b", "small")]
)
def test_a_pool_whose_module_could_not_be_imported_is_refused(invoke, tmp_path, pool, said):
    done = invoke("init", str(tmp_path / "new"), "--pool", pool)
    assert done.exit_code == 2 and said in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_one_line(invoke, tmp_path):
    (tmp_path / "file").write_text("")
    done = invoke("init", str(tmp_path / "file" / "sub"))
    assert done.exit_code == 2 and "cannot write to" in done.stderr
