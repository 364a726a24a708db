"""Which settings there are, what they default to, and that no bad one starts anything."""

from datetime import timedelta
from pathlib import Path

import pytest

from ulak.errors import BadInput
from ulak.services.pdf.document import Limits, Times
from ulak.services.pdf.settings import PdfRenderConfig, load
from ulak.settings import Settings

SECRET = "k" * 40
PRODUCTION = Settings(env="production", secret=SECRET)
ENOUGH = {
    "PDF_STORAGE_BACKEND": "s3",
    "S3_BUCKET": "pdfs",
    "PDF_TEMPLATE_ALLOWLIST": "invoice",
}


def seconds(n: int) -> timedelta:
    return timedelta(seconds=n)


@pytest.mark.shows("P-13", "P-15", "P-24")
def test_what_nobody_sets_is_as_the_specification_says() -> None:
    config = load({})
    assert config.hard_timeout == seconds(60)
    assert config.max_timeout == seconds(300)
    assert (config.lease, config.sweep, config.heartbeat_limit) == tuple(map(seconds, (30, 30, 15)))
    assert (config.retry_base, config.retry_max) == (seconds(1), seconds(30))
    assert config.artifact_tries == 3
    assert config.limits == Limits(
        html_bytes=5 * 2**20, dom_nodes=200_000, pages=500, output_bytes=50 * 2**20,
        memory_bytes=2**30,
    )  # fmt: skip
    assert config.graceful_cancel_offset == seconds(5)
    assert config.max_retries == 2
    assert config.artifact_ttl == config.grace == seconds(86400)
    assert config.cleanup_interval == seconds(3600)
    assert config.fail_safe_policy == "strict"
    assert config.security.template_allowlist == frozenset()
    assert config.security.url_allowlist == ()
    assert config.max_payload_bytes == 262_144
    assert (config.env, config.storage_backend, config.driver) == ("dev", "local", "playwright")
    assert config.recycle_after == 100
    assert config.concurrency >= 1


@pytest.mark.shows("P-22")
def test_artifacts_lie_below_the_data_folder_which_is_here_unless_it_is_set() -> None:
    assert load({}).artifact_dir == Path("artifacts")
    platform = Settings(data=Path("/var/lib/ulak"), sources={"data": "ULAK_DATA"})
    assert load({}, platform).artifact_dir == Path("/var/lib/ulak/artifacts")
    assert load({"PDF_ARTIFACT_DIR": "/srv/pdf"}, platform).artifact_dir == Path("/srv/pdf")


def test_every_setting_is_read(tmp_path: Path) -> None:
    config = load(
        {
            "PDF_ENV": "dev", "PDF_HARD_TIMEOUT": "20", "PDF_MAX_TIMEOUT": "40",
            "PDF_GRACEFUL_CANCEL_OFFSET": "3", "PDF_LEASE_SECONDS": "10",
            "PDF_SWEEP_SECONDS": "11", "PDF_HEARTBEAT_SECONDS": "12", "PDF_MAX_RETRIES": "5",
            "PDF_RETRY_BASE_SECONDS": "2", "PDF_RETRY_MAX_SECONDS": "9",
            "PDF_ARTIFACT_TRIES": "7", "PDF_ARTIFACT_TTL_SECONDS": "100",
            "PDF_CLEANUP_INTERVAL_SECONDS": "50", "PDF_GRACE_SECONDS": "60",
            "PDF_FAIL_SAFE_POLICY": "degrade", "PDF_MAX_PAYLOAD_BYTES": "1000",
            "PDF_STORAGE_BACKEND": "s3", "S3_BUCKET": "b", "S3_REGION": "r",
            "PDF_TEMPLATE_DIR": str(tmp_path), "PDF_CONCURRENCY": "3", "PDF_RECYCLE_AFTER": "0",
            "PDF_IDLE_SECONDS": "0",
            "PDF_DRIVER": "devtools", "PDF_CHROMIUM": "/bin/sh", "PDF_MAX_HTML_BYTES": "1",
            "PDF_MAX_DOM_NODES": "2", "PDF_MAX_PAGES": "3", "PDF_MAX_OUTPUT_BYTES": "4",
            "PDF_MAX_MEMORY_BYTES": "33554432", "PDF_TEMPLATE_ALLOWLIST": "invoice, report",
            "PDF_URL_ALLOWLIST": '["https://cdn\\\\.example\\\\.org/.*"]',
            "PDF_INTERNAL_HOSTS": "Files.example.org",
            "PDF_EXTRA_HEADERS": '{"files.example.org": {"X-Part": "pdf"}}',
        }
    )  # fmt: skip
    assert config.times == Times(seconds(20), seconds(3))
    assert (config.lease, config.sweep, config.heartbeat_limit) == tuple(map(seconds, (10, 11, 12)))
    assert (config.max_retries, config.retry_base, config.retry_max) == (5, seconds(2), seconds(9))
    assert (config.artifact_tries, config.artifact_ttl) == (7, seconds(100))
    assert (config.cleanup_interval, config.grace) == (seconds(50), seconds(60))
    assert (config.fail_safe_policy, config.max_payload_bytes) == ("degrade", 1000)
    assert (config.storage_backend, config.s3) == ("s3", {"S3_BUCKET": "b", "S3_REGION": "r"})
    assert (config.template_dir, config.concurrency, config.recycle_after) == (tmp_path, 3, 0)
    assert config.idle_after == seconds(0)
    assert (config.driver, config.chromium) == ("devtools", Path("/bin/sh"))
    assert config.limits == Limits(
        html_bytes=1, dom_nodes=2, pages=3, output_bytes=4, memory_bytes=2**25
    )
    assert config.security.template_allowlist == {"invoice", "report"}
    assert config.security.url_allowlist == (r"https://cdn\.example\.org/.*",)
    assert config.security.internal_hosts == {"files.example.org"}
    assert config.security.extra_headers == {"files.example.org": {"X-Part": "pdf"}}


def test_every_value_that_cannot_be_used_is_told_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        load(
            {
                "PDF_HARD_TIMEOUT": "soon",
                "PDF_MAX_RETRIES": "-1",
                "PDF_FAIL_SAFE_POLICY": "lenient",
                "PDF_URL_ALLOWLIST": "https://cdn.example.org",
                "PDF_TEMPLATE_ALLOWLIST": "../etc/passwd",
                "PDF_TEMPLATE_DIR": "/nowhere/at/all",
                "PDF_STORAGE_BACKEND": "s3",
            }
        )
    told = str(refused.value)
    for name in (
        "PDF_HARD_TIMEOUT", "PDF_MAX_RETRIES", "PDF_FAIL_SAFE_POLICY", "PDF_URL_ALLOWLIST",
        "PDF_TEMPLATE_ALLOWLIST", "PDF_TEMPLATE_DIR", "S3_BUCKET",
    ):  # fmt: skip
        assert name in told


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PDF_HARD_TIMEOUT": "5"}, "PDF_GRACEFUL_CANCEL_OFFSET"),
        ({"PDF_HARD_TIMEOUT": "301"}, "PDF_MAX_TIMEOUT"),
        ({"PDF_RETRY_BASE_SECONDS": "31"}, "PDF_RETRY_MAX_SECONDS"),
        ({"PDF_URL_ALLOWLIST": '["(a+"]'}, "PDF_URL_ALLOWLIST"),
        ({"PDF_URL_ALLOWLIST": '"https://x"'}, "PDF_URL_ALLOWLIST"),
        ({"PDF_CHROMIUM": "/nowhere/chromium"}, "PDF_CHROMIUM"),
        ({"PDF_MAX_PAGES": "9" * 5000}, "PDF_MAX_PAGES"),
    ],
)
def test_what_does_not_fit_together_is_refused(environ: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        load(environ)


@pytest.mark.shows("P-22")
@pytest.mark.parametrize("lacking", ["PDF_STORAGE_BACKEND", "S3_BUCKET", "PDF_TEMPLATE_ALLOWLIST"])
def test_production_never_falls_back_to_a_local_disk_or_an_open_list(lacking: str) -> None:
    environ = {name: value for name, value in ENOUGH.items() if name != lacking}
    with pytest.raises(BadInput, match=lacking):
        load(environ, PRODUCTION)
    assert load(ENOUGH, PRODUCTION).storage_backend == "s3"


@pytest.mark.shows("P-22")
def test_production_demands_authentication_and_tells_all_that_is_missing() -> None:
    with pytest.raises(BadInput) as refused:
        load({}, Settings(env="production"))
    told = str(refused.value)
    assert "ULAK_SECRET" in told
    assert "S3_BUCKET" in told
    assert "PDF_TEMPLATE_ALLOWLIST" in told


def test_its_environment_is_that_of_the_platform_unless_it_is_set() -> None:
    assert load({"PDF_ENV": "dev"}, PRODUCTION).env == "dev"
    with pytest.raises(BadInput, match="in production"):
        load({"PDF_ENV": "production"}, Settings(env="dev"))


@pytest.mark.plants_secrets
def test_credentials_of_a_bucket_are_shown_nowhere() -> None:
    said = "wJalrXUtnFEMI"
    config = load({**ENOUGH, "S3_SECRET_ACCESS_KEY": said}, PRODUCTION)
    assert said in config.s3.values()
    assert said not in repr(config)


@pytest.mark.shows("P-13")
@pytest.mark.parametrize("timeout", [0, 5, 301, True, -1])
def test_a_timeout_is_above_the_graceful_offset_and_within_the_largest(timeout: int) -> None:
    with pytest.raises(BadInput, match="from 6 to 300"):
        PdfRenderConfig().times_for(timeout)


@pytest.mark.shows("P-13")
def test_navigation_has_the_hard_timeout_less_the_graceful_offset() -> None:
    times = PdfRenderConfig().times_for(6)
    assert times.hard == seconds(6)
    assert times.navigation == seconds(1)
    assert PdfRenderConfig().stage_timeout > PdfRenderConfig().max_timeout
