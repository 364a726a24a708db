"""The settings of publishing: their names, their defaults, and every bad value at once."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from ulak.errors import BadInput
from ulak.service import get_service
from ulak.services.publishing.settings import PublishingSettings, load
from ulak.settings import Settings
from ulak.settings import describe_settings as describe

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "publishing.md"
SECRET = "s" * 40
KEY, OWN_KEY = "k" * 40, "d" * 40


def test_without_variables_the_defaults_of_the_specification_hold():
    found = load({})
    assert found == PublishingSettings()
    assert (found.notifications_queue, found.saga_queue, found.dlq_queue) == (
        "article-notifications", "article-saga", "dlq",
    )  # fmt: skip
    assert (found.approve_rate, found.push_timeout_s, found.notify_concurrency) == (0.7, 5, 20)
    assert (found.retry_base, found.retry_max) == (timedelta(seconds=1), timedelta(seconds=600))
    assert (found.visibility, found.stuck_after) == (timedelta(minutes=1), timedelta(minutes=15))
    assert found.access_token_expire == timedelta(minutes=30)
    text = found.notify_message.format(author_id="7", title="A very long title")
    assert text == "Пользователь 7 выпустил новый пост: A very lon..."


def test_every_variable_of_the_specification_is_read():
    section = SPEC.read_text(encoding="utf-8").partition("## 12. Settings")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")][1:]
    named = {name for row in rows for name in re.findall(r"[A-Z_]{4,}", row)}
    assert len(named) > 20
    assert named <= set(describe(load({})))


@pytest.mark.parametrize(
    ("said", "saga", "notifications"),
    [
        ({}, "article-saga", "article-notifications"),
        ({"NOTIFICATIONS_QUEUE": "one"}, "one", "one"),
        ({"SAGA_QUEUE": "two"}, "two", "article-notifications"),
        ({"NOTIFICATIONS_QUEUE": "one", "SAGA_QUEUE": "two"}, "two", "one"),
    ],
)
def test_a_queue_of_notifications_alone_is_the_queue_of_both(said, saga, notifications):
    found = load(said)
    assert (found.saga_queue, found.notifications_queue) == (saga, notifications)


BAD = {
    "DATABASE_URL": "mysql://ada:hunter22@localhost/posts",
    "USERS_DATABASE_URL": "users.db",
    "NOTIFICATIONS_QUEUE": "two words",
    "PUSH_SERVICE_URL": "ftp://push",
    "PUSH_TIMEOUT_SECONDS": "0",
    "BACKEND_URL": "http://ada:hunter22@backend",
    "INTERNAL_API_KEY": "hunter22 hunter22",
    "INTERNAL_API_KEY_DLQ": "hunter22\thunter22",
    "SECRET_KEY": "hunter22",
    "ACCESS_TOKEN_EXPIRE_MINUTES": "soon",
    "MODERATION_APPROVE_RATE": "1.1",
    "SAGA_MAX_RETRIES": "-1",
    "NOTIFY_MAX_RETRIES": "many",
    "RETRY_BASE_SECONDS": "1e9",
    "RETRY_MAX_SECONDS": "nan",
    "RETRY_JITTER": "maybe",
    "TASK_VISIBILITY_SECONDS": "0.5",
    "SAGA_STUCK_SECONDS": "",
    "NOTIFY_CONCURRENCY": "0",
    "NOTIFY_MESSAGE": "{nobody}",
    "REDIS_URL": "postgresql://ada:hunter22@localhost/queue",
}


def test_every_bad_value_is_told_at_once_by_its_variable_and_no_secret_with_it():
    with pytest.raises(BadInput) as told:
        load(BAD, env="production")
    said = str(told.value)
    assert [name for name in BAD if f"{name}: " not in said] == ["SAGA_STUCK_SECONDS"]  # not set
    assert "hunter22" not in said


def test_a_base_delay_above_the_longest_is_refused():
    with pytest.raises(BadInput, match=r"^RETRY_BASE_SECONDS: it is more than RETRY_MAX_SECONDS"):
        load({"RETRY_BASE_SECONDS": "20", "RETRY_MAX_SECONDS": "10"})


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("secret", ["change-me-in-production" * 2, "your-secret-key" * 3, "short"])
def test_a_default_secret_is_refused_outside_dev(secret):
    assert load({"SECRET_KEY": secret}).secret_key == secret
    with pytest.raises(BadInput, match=r"^SECRET_KEY: it is a placeholder"):
        load({"SECRET_KEY": secret}, env="production")
    assert load({"SECRET_KEY": SECRET}, env="production").secret_key == SECRET


def test_users_are_not_served_without_a_secret():
    with pytest.raises(BadInput, match=r"^SECRET_KEY is not set"):
        load({}, env="production").must_have_secret()


@pytest.mark.shows("S-33")
def test_each_worker_has_its_own_key_or_the_common_one():
    found = load({"INTERNAL_API_KEY": KEY, "INTERNAL_API_KEY_DLQ": OWN_KEY})
    common = dict.fromkeys(("moderation", "preview", "publish"), KEY)
    assert found.internal_api_keys == {**common, "dlq": OWN_KEY}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "INTERNAL_API_KEY is not set"),
        ({"INTERNAL_API_KEY_DLQ": OWN_KEY}, "INTERNAL_API_KEY is not set"),
        ({"INTERNAL_API_KEY": "change-me-in-production"}, "INTERNAL_API_KEY holds a placeholder"),
        (
            {"INTERNAL_API_KEY": KEY, "INTERNAL_API_KEY_PREVIEW": "change-me-in-production"},
            "INTERNAL_API_KEY_PREVIEW holds a placeholder",
        ),
    ],
)
def test_a_worker_without_a_key_is_told_which_variable_to_set(said, why):
    with pytest.raises(BadInput) as told:
        load(said).must_have_keys("moderation", "preview")
    assert str(told.value).startswith(why)
    assert "scripts/generate_api_keys.py" in str(told.value)


def test_the_template_of_the_specification_is_taken_as_it_is_written_there():
    found = load({"NOTIFY_MESSAGE": "{author_id}: {title[:10]}"})
    assert found.notify_message.format(author_id="7", title="A very long title") == "7: A very lon"


def test_doctor_shows_what_is_in_force_and_hides_what_is_secret(monkeypatch, tmp_path):
    said = {
        "DATABASE_URL": "postgresql://ada:hunter22@localhost/posts", "SECRET_KEY": SECRET,
        "INTERNAL_API_KEY": KEY, "RETRY_MAX_SECONDS": "30",
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    condition = get_service("publishing").condition(Settings(data=tmp_path, env="production"))
    shown = condition.settings
    assert shown["RETRY_MAX_SECONDS"] == ("30 s", "RETRY_MAX_SECONDS")
    assert shown["RETRY_BASE_SECONDS"] == ("1 s", "default")
    assert shown["DATABASE_URL"] == ("set", "DATABASE_URL")
    assert shown["SECRET_KEY"][0] == shown["INTERNAL_API_KEY"][0] == "set"
