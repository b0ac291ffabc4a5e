from __future__ import annotations

import pytest

from gangline.schemas.errors.base import InvalidName, InvalidRequest
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import DEFAULT_USERS, configuration, parse_user, variable
from gangline.schemas.permissions.roles import USER_INFO, Role, User, permissions


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("operator", User(name="operator", roles=(Role.OPERATOR,))),
        ("worker:images", User(name="worker", roles=(Role.WORKER,), pool="images")),
        ("gpu-1=worker:images.w1", User(name="gpu-1", roles=(Role.WORKER,), pool="images", worker="w1")),
        ("shop=router+producer", User(name="shop", roles=(Role.ROUTER, Role.PRODUCER))),
    ],
)
def test_a_user_is_a_name_its_roles_and_what_they_are_cut_to(text, user):
    assert parse_user(text) == user


@pytest.mark.parametrize("text", ["", "king", "a=", "a=king", "a=worker+", "=worker"])
def test_what_is_no_user_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse_user(text)


@pytest.mark.parametrize("text", ["a b=worker", "a=worker:im ages", "a=worker:images.*x", "a=worker:images.w1.w2"])
def test_names_that_cannot_stand_in_a_subject_are_refused(text):
    with pytest.raises(InvalidName):
        parse_user(text)


@pytest.mark.parametrize("users", [[], ["worker", "worker:images"]])
def test_users_have_names_of_their_own(users):
    with pytest.raises(InvalidRequest, match="give users with different names"):
        configuration(Names(), [parse_user(text) for text in users])


def test_roles_add_up():
    both = User(name="shop", roles=(Role.ROUTER, Role.PRODUCER)).permissions(Names())
    for role in (Role.ROUTER, Role.PRODUCER):
        assert set(permissions(role, Names()).publish) <= set(both.publish)
        assert set(permissions(role, Names()).subscribe) <= set(both.subscribe)
    assert len(set(both.publish)) == len(both.publish)
    assert "_INBOX.shop.>" in both.subscribe


@pytest.mark.parametrize("role", Role)
def test_nobody_is_allowed_anything_outside_its_namespace(role):
    allowed = permissions(role, Names("mine"))
    everybodys = ["$JS.API.INFO", "$SYS.ACCOUNT.*.DISCONNECT", USER_INFO]
    if role is Role.OPERATOR:  # names of streams, and what the server tells of any
        everybodys += ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.EVENT.>"]
    for subject in (*allowed.publish, *allowed.subscribe):
        ours = subject.startswith(("mine.", "mine-audit.", "mine-history.", "_GANGLINE.mine.")) or "MINE_" in subject
        shared = subject.startswith(("$SRV.", "_INBOX.", "_R_.")) or subject in everybodys
        assert ours or shared, subject


def test_only_dispatchers_and_operators_write_schedules_which_may_name_any_endpoint():
    writers = [role for role in Role if "gangline.sched.*" in permissions(role, Names()).publish]
    assert writers == [Role.DISPATCHER]


def test_each_user_of_the_shipped_file_has_a_password_and_an_inbox():
    text = configuration(Names(), DEFAULT_USERS)
    for user in DEFAULT_USERS:
        assert f"user: {user.name}, password: ${variable(user.name)}" in text
        assert f'"_INBOX.{user.name}.>"' in text
    assert {role for user in DEFAULT_USERS for role in user.roles} == set(Role) - {Role.OWNER}


@pytest.mark.parametrize("role", Role)
def test_who_hears_private_subjects_answers_there_and_who_asks_there_may_not_hear_them(role):
    allowed = permissions(role, Names())
    private = [subject for subject in allowed.subscribe if subject.startswith("_GANGLINE.")]
    public = [subject.removeprefix("_GANGLINE.") for subject in private if ".worker." not in subject]
    assert set(public) <= set(allowed.subscribe), "nobody listens privately alone"
    assert (role in (Role.PRODUCER, Role.ROUTER, Role.OWNER, Role.OBSERVER, Role.OPERATOR)) == (not private)
    assert not [subject for subject in private if subject.endswith(".>") and ".call." not in subject]


def test_only_ganglines_account_is_told_whose_connection_broke() -> None:
    """The server's message has addresses and names of users."""
    users = tuple(map(parse_user, ("coordinator", "w1@gpus=worker:images.w1")))
    exports = [
        line for line in configuration(Names(), users).splitlines() if "DISCONNECT" in line and "exports" in line
    ]
    both = [f'{{ stream: "$SYS.ACCOUNT.{each}.DISCONNECT", accounts: [GANGLINE] }}' for each in ("GANGLINE", "gpus")]
    assert exports == [f"    exports: [ {', '.join(both)} ]"]
