"""The Hugging Face hub: what its refusals mean, and when it is worth to ask it again."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from json import JSONDecodeError

from httpx2 import Client, Request, Response, TransportError
from huggingface_hub import set_client_factory
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (
    disable_progress_bars,
    enable_progress_bars,
    parse_ratelimit_headers,
)
from huggingface_hub.utils._http import default_client_factory

from sft.errors import SftError
from sft.step import log

# 409: another change is under way; 412: somebody's commit came before ours.
PASSING = {408, 409, 412, 425, 429, 500, 502, 503, 504}
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 300.0
PATIENCE_S = 7200.0  # so long without any progress; a limit by the hour is over by then
UNREACHED_S = 300.0  # so long where it has not answered once: the way there is wrong
SILENCE_S = 300.0  # the client itself would wait for ever, behind a tunnel that died

NO_ROOM = re.compile("storage|quota|payment|billing|upgrade", re.IGNORECASE)


def answer_of(error: HfHubHTTPError) -> str:
    """What the hub said: `<endpoint> answered 403: its words`."""
    words = error.server_message or error.response.reason_phrase
    return f"{ENDPOINT} answered {error.response.status_code}: {words}"


class _Relay(logging.Handler):
    """Sends the client's lines to the log, without the signatures that stand in some URLs."""

    def emit(self, record: logging.LogRecord) -> None:
        log.info("%s", re.sub(r"\?\S+", "", record.getMessage()))


@contextmanager
def patient_client() -> Iterator[None]:
    """Let the client give up on what is silent, draw no bars, and tell the log of its retries."""
    client = logging.getLogger("huggingface_hub")
    before, client.handlers = client.handlers, [_Relay()]
    disable_progress_bars()
    try:
        with client_that_gives_up():
            yield
    finally:
        enable_progress_bars()
        client.handlers = before


@contextmanager
def client_that_gives_up() -> Iterator[None]:
    """Let the client end what is silent for SILENCE_S."""
    set_client_factory(_make_client)
    try:
        yield
    finally:
        set_client_factory(default_client_factory)


def _make_client() -> Client:
    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = hooks | {"request": [*hooks["request"], _limit_silence]}
    return client


def _limit_silence(request: Request) -> None:
    """Limit what a request waits for; some calls of huggingface_hub ask for no limit by name."""
    asked = request.extensions.get("timeout") or {}
    limits = {kind: asked.get(kind) or SILENCE_S for kind in ("connect", "read", "write", "pool")}
    request.extensions["timeout"] = limits


class Patience:
    """Waits between tries at one thing: longer each time, or as long as the hub asks.

    `answered` is set once the hub was reached.
    """

    def __init__(self, what: str) -> None:
        self.what, self.answered = what, False
        self.renew()

    def renew(self) -> None:
        """Begin anew: something was achieved since the last failure."""
        self._wait_s = FIRST_WAIT_S
        self._first_failure_s: float | None = None

    def wait(self, error: Exception) -> None:
        """Sleep after a failure that passes.

        Raises SftError with the hub's words and a remedy where it does not pass, or not in time,
        and `error` itself where it is none of the hub's or of the network's.
        """
        cause, asked_s = _root_of(error), 0.0
        if isinstance(cause, HfHubHTTPError):
            self.answered = True
            status, found = cause.response.status_code, answer_of(cause)
            if status not in PASSING:
                raise SftError(f"{self.what}: {found}; {_remedy(status, found)}") from error
            asked_s = _asked_wait_s(cause.response)
        elif isinstance(cause, OfflineModeIsEnabled):
            raise SftError(f"{self.what}: HF_HUB_OFFLINE is set; unset it for this") from error
        elif _is_of_the_network(cause):
            found = f"lost the connection to {ENDPOINT} ({cause or type(cause).__name__})"
        elif isinstance(cause, ValueError):  # what the client makes of a refusal inside an answer
            words = " ".join(str(cause).split())
            raise SftError(f"{self.what}: {ENDPOINT}: {words}; {_remedy(0, words)}") from error
        else:
            raise error
        wait_s, now_s = max(asked_s, self._wait_s), time.monotonic()
        self._first_failure_s = self._first_failure_s or now_s
        limit_s = PATIENCE_S if self.answered else UNREACHED_S
        if now_s + wait_s - self._first_failure_s > limit_s:
            later = "run again later: what has arrived is not sent twice"
            remedy = later if self.answered else "see network_on and network_prefix of the profile"
            raise SftError(
                f"{self.what}: {found}; not tried again before {wait_s:.0f} s have passed; {remedy}"
            ) from error
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s)
        log.info("%s: %s; tried again in %.0f s", self.what, found, wait_s)
        time.sleep(wait_s)


def _root_of(error: BaseException) -> BaseException:
    """The hub's or the network's own error, where the client wrapped it in another."""
    chain = [error]
    while chain[-1].__cause__ is not None and not isinstance(chain[-1], HfHubHTTPError):
        chain.append(chain[-1].__cause__)
    own = [each for each in chain if isinstance(each, HfHubHTTPError) or _is_of_the_network(each)]
    return own[0] if own else error


def _is_of_the_network(error: BaseException) -> bool:
    """Whether an answer did not come, or not whole.

    The client lets the JSON of a cut answer fail where it reads it; its Xet library has no error of
    its own for a lost connection.
    """
    kinds = (TransportError, ConnectionError, TimeoutError, JSONDecodeError)
    return isinstance(error, kinds) or (type(error) is RuntimeError and error.__cause__ is None)


def _asked_wait_s(response: Response) -> float:
    """How long the hub asks to wait; 0 where it does not say."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    if text:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit and not limit.remaining else 0.0


def _remedy(status: int, words: str) -> str:
    if status == 402 or NO_ROOM.search(words):
        return "make room there, or let the owner of the namespace raise its limit; then run again"
    if "metadata" in words:
        return "correct what the model card takes from the table and its registries"
    return {
        401: "set HF_TOKEN to a valid token, see https://huggingface.co/settings/tokens",
        403: "the token needs the right to write there: of a member of the namespace, with the "
        "role `write`, or fine-grained with write access to it",
        404: "correct hub_id or namespace, or set HF_TOKEN to a token that sees the repository",
    }.get(status, "nothing of this passes by itself; correct what it names and run again")
