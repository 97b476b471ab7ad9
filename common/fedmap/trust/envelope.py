"""Signed JSON files that anybody may carry and nobody may change: withdrawals, certificates of deletion.

    {"format": 1, FIELD: "the content, one canonical JSON text", "signed": {…}}

`signed` holds the signature of a release key with its public key, or that of a certificate's key with the
certificate. There is one spelling of a file: a reader refuses every other, so that no bit can hide.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fedmap.errors import IncompatibleError, IntegrityError, LimitError, ServiceError
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import sign, verify_chain
from fedmap.trust.pki import verify_signature as verify_with_certificate
from fedmap.trust.signing import FORMAT, parse_signature, signature_of, verify_signature

_Content = TypeVar("_Content", bound=BaseModel)


@dataclass(frozen=True)
class CertificateSigner:
    """A certificate and its key. PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Envelope:
    """One kind of signed file."""

    kind: bytes  # what every signature of this kind begins with
    field: str
    name: str
    most_bytes: int
    hint: str

    def sign_by_release_key(self, content: BaseModel, release_key_pem: bytes) -> bytes:
        """The file; what a reader would refuse is never signed."""
        text = self._checked(content)
        return self._file(text, json.loads(signature_of(release_key_pem, self.kind, text).to_json()))

    def sign_by_certificate(self, content: BaseModel, signer: CertificateSigner) -> bytes:
        text = self._checked(content)
        signature = base64.b64encode(sign(signer.key, self.kind + text)).decode("ascii")
        return self._file(text, {"certificate": signer.certificate.decode("ascii"), "signature": signature})

    def open(self, data: bytes) -> Opened:
        """The file taken apart, every byte in its form. Nobody has asked yet who signed it."""
        if len(data) > self.most_bytes:
            raise LimitError(f"{self.name} is larger than {self.most_bytes >> 20} MiB", hint=self.hint)
        try:
            form = json.loads(data)
            canonical(form)  # JSON can hold half a character, which no text can
            match form:
                case {"format": int(other)} if other != FORMAT:
                    raise IncompatibleError(
                        f"{self.name} is not of format {FORMAT}, the one that this software reads",
                        hint="Update this software.",
                    )
                case {self.field: str(text), "signed": dict(signed)} if (
                    self._file(text.encode(), signed) == data
                ):
                    return Opened(self, text.encode(), signed)
        except (ValueError, RecursionError):
            raise self.damaged("it cannot be read as JSON") from None
        raise self.damaged("it is not in its form")

    def damaged(self, reason: str) -> IntegrityError:
        return IntegrityError(f"{self.name} cannot be used: {reason}", hint=self.hint)

    def parsed(self, text: bytes, model: type[_Content]) -> _Content:
        """The content, which must be spelt as this software spells it."""
        try:
            found = model.model_validate_json(text)
        except ValidationError:
            raise self.damaged("its content is not in its form") from None
        if canonical(found.model_dump(mode="json")) != text:
            raise self.damaged("its content is not in its form")
        return found

    def _checked(self, content: BaseModel) -> bytes:
        text = canonical(content.model_dump(mode="json"))
        self.parsed(text, type(content))
        return text

    def _file(self, text: bytes, signed: object) -> bytes:
        form = {"format": FORMAT, self.field: text.decode(), "signed": signed}
        return (json.dumps(form, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class Opened:
    """A file in its form: signed by the key that it names once one of the two below has passed."""

    envelope: Envelope
    text: bytes
    signed: dict[str, object]

    @property
    def by_certificate(self) -> bool:
        return "certificate" in self.signed

    def verify_release_key(self, fingerprints: Collection[str]) -> str:
        """The release key's fingerprint, if it is one of these; else an error."""
        try:
            signature = parse_signature(canonical(self.signed))
            return verify_signature(signature, self.envelope.kind, self.text, fingerprints)
        except ServiceError as error:
            raise type(error)(f"{self.envelope.name}: {error.message}", hint=error.hint) from error

    def verify_certificate(self, authority_pem: bytes, moment: datetime.datetime) -> Identity:
        """Whose certificate it is, if this authority issued it and it was good at that moment."""
        match self.signed:
            case {"certificate": str(certificate), "signature": str(encoded)}:
                found = verify_chain(certificate.encode(), authority_pem, moment)
                verify_with_certificate(
                    certificate.encode(), self.envelope.kind + self.text, self._decoded(encoded)
                )
                return found
        raise self.envelope.damaged("it is not in its form")

    def content(self, model: type[_Content]) -> _Content:
        return self.envelope.parsed(self.text, model)

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self.envelope.damaged("its signature is not in its form") from None


def canonical(form: object) -> bytes:
    """The one spelling of a JSON value."""
    return json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
