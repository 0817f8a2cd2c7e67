"""What an account may do; what a file of accounts may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.endpoints.access.accounts import Account, Right, parse_accounts, read_accounts
from dledger import ConfigError

SECRET = "very-secret-indeed"


def account(**fields: Any) -> Account:
    content = {"accounts": [{"access_key": "app", "secret": SECRET, **fields}]}
    return parse_accounts(content, "here").accounts[0]


def test_nothing_is_allowed_that_is_not_named() -> None:
    assert account().topic_right("t") is Right.DENY
    assert account(default_permission="SUB").group_right("g") is Right.SUB


def test_the_name_itself_and_then_the_longest_beginning_decides() -> None:
    found = account(topics={"log*": "PUB", "log-a*": "PUB|SUB", "log-a-1": "DENY", "*": "SUB"})
    rights = [found.topic_right(name) for name in ("log-b", "log-a-2", "log-a-1", "other")]
    assert rights == [Right.PUB, Right.PUB | Right.SUB, Right.DENY, Right.SUB]


def test_retry_and_dead_letter_topics_are_read_by_their_group() -> None:
    found = account(groups={"g": "PUB|SUB"}, default_permission="DENY")
    assert found.topic_right("%DLQ%g") is Right.SUB
    assert found.topic_right("%RETRY%g") is Right.SUB
    assert found.topic_right("%DLQ%other") is Right.DENY
    assert account(topics={"%DLQ%g": "PUB"}).topic_right("%DLQ%g") is Right.PUB


@pytest.mark.parametrize(
    ("remote", "may"),
    [
        ("10.1.2.3:5", True),
        ("11.1.2.3:5", False),
        ("[fd00::7]:5", True),
        ("[::ffff:10.1.2.3]:5", True),
        ("", False),
    ],
)
def test_addresses_limit_where_an_account_is_good(remote: str, may: bool) -> None:
    assert account(source_addresses=["10.0.0.0/8", "fd00::/16"]).may_come_from(remote) is may
    assert account().may_come_from(remote)


@pytest.mark.parametrize(
    "fields",
    [
        {"topics": {"a": "WRITE"}},
        {"topics": {"a*b": "PUB"}},
        {"secret": ""},
        {"access_key": "a/b"},
        {"source_addresses": ["nowhere"]},
        {"source_addresses": "10.0.0.1"},
        {"unknown": SECRET},
        {"admin": [SECRET]},
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is_shown(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        account(**fields)
    assert next(iter(fields)) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_two_accounts_with_one_key_are_refused() -> None:
    one = {"access_key": "app", "secret": SECRET}
    with pytest.raises(ConfigError, match="two accounts"):
        parse_accounts({"accounts": [one, one]}, "here")


def test_secrets_are_in_no_text_of_an_account() -> None:
    assert SECRET not in repr(account()) and SECRET not in str(account())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", f'[[accounts]]\naccess_key = "k"\nsecret = "{SECRET}"\ntopics = {{ t = "PUB" }}\n'),
        (
            "a.json",
            f'{{"accounts": [{{"access_key": "k", "secret": "{SECRET}", "topics": {{"t": "PUB"}}}}]}}',
        ),
    ],
)
def test_a_file_is_toml_or_json(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    (found,) = read_accounts(path).accounts
    assert found.topic_right("t") is Right.PUB
    path.write_text(text[:-30] + SECRET)
    with pytest.raises(ConfigError, match="is no") as caught:
        read_accounts(path)
    assert SECRET not in str(caught.value)
    for broken in ("a = ", "[1, "):
        path.write_text(broken + 100_000 * "[")
        with pytest.raises(ConfigError, match="is no"):
            read_accounts(path)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        read_accounts(path)
