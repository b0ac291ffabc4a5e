from __future__ import annotations

import inspect
import pickle
import re

from gangline.bus.port import bus as port
from gangline.schemas.errors import base as errors
from gangline.schemas.errors.base import GanglineError, TaskFailed, error_from_wire
from gangline.schemas.wire import codec


def tree(root: type[GanglineError]) -> list[type[GanglineError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


# A class without a code of its own is a detail of where it is raised; it travels as its parent.
OURS = [cls for cls in tree(GanglineError) if cls.__module__.startswith("gangline.") and "code" in vars(cls)]


def test_an_error_arrives_as_what_it_was_sent_as():
    for cls in OURS:
        sent = cls("went wrong", details={"limit": 7, "names": ["a"]}, may_have_started=not cls.may_have_started)
        body = codec.from_json(codec.to_json(sent.to_wire()))
        got = error_from_wire(body["code"], body["message"], body["details"], body["may_have_started"])
        assert type(got) is cls
        assert (str(got), got.message, got.details) == ("went wrong", "went wrong", sent.details)
        assert got.may_have_started is not cls.may_have_started
        assert (got.code, got.status) == (sent.code, sent.status)


def test_an_error_survives_the_way_out_of_a_process():
    for cls in OURS:
        sent = cls("went wrong", details={"a": 1}, may_have_started=True)
        got = pickle.loads(pickle.dumps(sent))
        assert type(got) is cls
        assert (got.message, got.details, got.may_have_started) == (sent.message, sent.details, True)


def test_codes_are_unique_and_machine_readable():
    codes = [cls.code for cls in OURS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)
    assert all(400 <= cls.status < 600 for cls in OURS)


def test_errors_of_the_folders_above_are_rebuilt_too():
    assert type(error_from_wire("no_responders", "nobody", None, False)) is port.NoResponders


def test_a_class_without_a_code_of_its_own_arrives_as_its_parent():
    class Detail(port.Conflict):
        def __init__(self) -> None:
            super().__init__("gone")

    sent = Detail().to_wire()
    got = error_from_wire(sent["code"], sent["message"], None, sent["may_have_started"])
    assert type(got) is port.Conflict


def test_a_class_that_is_defined_after_the_first_look_is_found():
    assert type(error_from_wire("made_up_late", "x", None, False)) is GanglineError

    class MadeUpLate(GanglineError):
        code = "made_up_late"

    assert type(error_from_wire("made_up_late", "x", None, False)) is MadeUpLate


def test_a_code_of_a_newer_version_becomes_the_base_class_and_keeps_its_facts():
    error = error_from_wire("from_the_future", "hm", {"a": 1}, True)
    assert type(error) is GanglineError
    assert (error.message, error.details, error.may_have_started) == ("hm", {"a": 1}, True)


def test_an_error_without_a_text_shows_its_name():
    assert str(errors.Saturated()) == "Saturated"
    assert "details" not in errors.Saturated().to_wire()


def test_only_errors_after_a_start_say_that_the_task_may_have_started():
    started = {cls.__name__ for cls in OURS if cls.may_have_started}
    certain = {cls.__name__ for cls in OURS if issubclass(cls, (errors.InvalidRequest, errors.LeaseError))}
    assert {"TaskFailed", "TaskCrashed", "WorkerLost", "ResultLost", "StreamBroken", "InvalidResult"} <= started
    assert not started & certain


def test_a_failed_task_tells_the_remote_type_and_traceback():
    error = TaskFailed("bad", details={"type": "ValueError", "traceback": "Traceback ..."})
    assert (error.remote_type, error.remote_traceback) == ("ValueError", "Traceback ...")
    assert (TaskFailed("bad").remote_type, TaskFailed("bad").remote_traceback) == ("", "")


def test_the_tree_at_the_top_of_the_file_is_the_tree_of_the_classes():
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)(?:  |$)", inspect.getdoc(errors) or "", re.MULTILINE)
    here = [cls.__name__ for cls in OURS if getattr(errors, cls.__name__, None) is cls]
    assert sorted(drawn) == sorted(here)
