"""How long the hub is asked again: longer each time, as long as it asks, and not for ever."""

import json

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

import sft.hub
from sft.errors import SftError
from sft.hub import Patience


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 1000.0, []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1_700_000_000.0

    def sleep(self, wait_s: float) -> None:
        self.slept_s.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sft.hub, "time", clock)
    return clock


def answer(status: int, **headers: str) -> HfHubHTTPError:
    request = httpx2.Request("POST", "http://hub/x")
    response = httpx2.Response(status, headers=headers, request=request)
    return HfHubHTTPError("no", response=response)


def test_waits_double_up_to_a_limit(clock):
    patience = Patience("upload")
    for _ in range(10):
        patience.wait(answer(500))
    assert clock.slept_s == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_patience_ends(clock):
    patience = Patience("upload")
    with pytest.raises(SftError, match="run again later: what has arrived is not sent twice"):
        while True:
            patience.wait(answer(500))
    assert 6900 < sum(clock.slept_s) <= 7200


def test_long_work_before_the_first_failure_does_not_count(clock):
    patience = Patience("upload")
    clock.now_s += 100_000
    patience.wait(answer(503))
    assert clock.slept_s == [2]


def test_patience_begins_anew_after_something_was_achieved(clock):
    patience = Patience("upload")
    for _ in range(100):
        patience.wait(answer(500))
        clock.now_s += 3000
        patience.renew()
    assert clock.slept_s == [2] * 100


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "77"},
        {"Retry-After": "Tue, 14 Nov 2023 22:14:37 GMT"},
        {"RateLimit": '"api";r=0;t=77', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'},
    ],
)
def test_wait_that_the_hub_asks_for_is_kept(clock, headers):
    Patience("upload").wait(answer(429, **headers))
    assert clock.slept_s == [77]


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ReadTimeout("slow"),
        ConnectionResetError("gone"),
        json.JSONDecodeError("cut", "{", 1),
        RuntimeError("Xet: connection closed"),
    ],
)
def test_lost_connection_passes_also_where_the_client_wraps_it(clock, error):
    wrapped = RuntimeError("Error while uploading 'a'")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        Patience("upload").wait(each)
    assert clock.slept_s == [2, 2]


def test_error_that_is_nobody_s_answer_travels(clock):
    with pytest.raises(FileNotFoundError):
        Patience("upload").wait(FileNotFoundError("weights"))
    assert clock.slept_s == []


def test_patience_with_a_hub_that_never_answered_is_short(clock):
    patience = Patience("upload")
    with pytest.raises(SftError, match="see network_on and network_prefix of the profile"):
        while True:
            patience.wait(httpx2.ConnectError("refused"))
    assert 200 < sum(clock.slept_s) <= 300


def test_patience_is_long_once_the_hub_answered(clock):
    patience = Patience("upload")
    patience.answered = True
    with pytest.raises(SftError, match="run again later"):
        while True:
            patience.wait(httpx2.ConnectError("refused"))
    assert 6900 < sum(clock.slept_s) <= 7200
