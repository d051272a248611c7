"""How two processes show each other that they know a token, without saying it.

Each side sends a nonce, and each proof covers both: what was recorded once proves nothing later.

1. The controller: `challenge`, with its nonce.
2. The guest, who is a rank or a node: who it is, its nonce and its proof.
3. The controller: `welcome`, with its own proof. Only then does the guest obey.
"""

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from harness.ranks.wire import MAX_FRAME, MAX_HELLO, Frame, FrameReader, ProtocolError, encode

CONTROLLER = "controller"


class Unproven(ProtocolError):
    """Who is at the other end does not know the token."""


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof(token: str, who: str, *nonces: str) -> str:
    """What only one who knows the token can say; the token itself stays at home."""
    said = json.dumps([who, *nonces]).encode()
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def launch_token(token: str, launch: str) -> str:
    """For the ranks of one launch: hosts that know the pool's token need not be told it."""
    return proof(token, "launch", launch)


@dataclass(slots=True)
class Challenge:
    """The controller's side, for one connection."""

    nonce: str = field(default_factory=new_nonce)

    @property
    def frame(self) -> bytes:
        return encode("challenge", nonce=self.nonce)

    def welcome(self, token: str, frame: Frame) -> bytes:
        """What to answer a guest; `Unproven` if it does not know the token."""
        theirs = frame.text("nonce")
        expected = proof(token, frame.kind + json.dumps(_said(frame)), self.nonce, theirs)
        if not hmac.compare_digest(frame.text("proof").encode(), expected.encode()):
            raise Unproven("an unknown process connected: it does not know the token")
        return encode("welcome", proof=proof(token, CONTROLLER, self.nonce, theirs))


@dataclass(slots=True)
class Guest:
    """The side of a rank or a node; what it says of itself is part of its proof."""

    token: str
    kind: str
    said: dict[str, Any] = field(default_factory=dict)
    # Until both are proven, little is read.
    reader: FrameReader = field(default_factory=lambda: FrameReader(limit=MAX_HELLO))
    welcome: bool = False
    _expected: str = ""

    def answer(self, frame: Frame) -> bytes:
        """What to say to a controller that has not proven itself yet; nothing once it has."""
        if frame.kind == "challenge" and not self._expected:
            theirs, own = frame.text("nonce"), new_nonce()
            self._expected = proof(self.token, CONTROLLER, theirs, own)
            shown = proof(self.token, self.kind + json.dumps(self.said), theirs, own)
            return encode(self.kind, nonce=own, proof=shown, **self.said)
        if (
            frame.kind != "welcome"
            or not self._expected
            or not hmac.compare_digest(frame.text("proof").encode(), self._expected.encode())
        ):
            raise Unproven("it does not know the token")
        self.welcome, self.reader.limit = True, MAX_FRAME
        return b""


def _said(frame: Frame) -> dict[str, Any]:
    return {key: value for key, value in frame.header.items() if key not in ("nonce", "proof")}
