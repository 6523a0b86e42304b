"""A researcher's signature under an experiment: Ed25519 over its digest, by the `cryptography` package."""

import os
from pathlib import Path
from typing import Any

from sightline.errors import invalid, refuse
from sightline.runtimes.site.policy import POLICY, SitePolicy

PREFIX = b"sightline experiment "
"""What is signed is this and the digest: a signature of something else is none of an experiment."""
HEX = set("0123456789abcdef")


def make_key(path: Path) -> str:
    """Write a new private key, readable by its owner only, and return the public one in hex."""
    ed25519 = _load_cryptography()
    if path.exists():
        invalid("KEY", path, "is there already", "choose another name")
    key = ed25519.Ed25519PrivateKey.generate()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(key.private_bytes_raw().hex() + "\n")
    return str(key.public_key().public_bytes_raw().hex())


def sign_digest(path: Path, digest: str) -> str:
    """`PUBLIC KEY SIGNATURE`, both in hex, of the key in a file."""
    ed25519 = _load_cryptography()
    try:
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError) as error:
        invalid("--key", path, f"holds no key ({type(error).__name__})", "sightline site keygen makes one")
    return f"{key.public_key().public_bytes_raw().hex()} {key.sign(PREFIX + digest.encode()).hex()}"


def check_signature(policy: SitePolicy, digest: str, signature: str | None) -> str:
    """The key that signed the experiment; nothing when nobody did and the policy does not ask for it.

    Guarantees: a signature that is given is one of a known key and of this very digest, or it is refused.
    """
    if signature is None:
        if policy.require_signature:
            refuse("--signature", "none", "this site approves signed experiments only", "sightline site sign makes one")
        return ""
    key, _, signed = " ".join(signature.split()).partition(" ")
    if key not in {known.lower() for known in policy.known_keys}:
        refuse("--signature", key[:16], f"its key is not one of known_keys in {POLICY}", "ask the owner to add the key")
    if not signed or not set(key + signed) <= HEX or len(key) != 64 or not _verifies(key, signed, digest):
        refuse("--signature", signed[:16], "is not this key's signature of this experiment", "sign it again")
    return key


def check_signer(policy: SitePolicy, signed_by: str) -> None:
    """Raise Refused when the policy no longer accepts an approval that this key signed; "" stands for no signature."""
    if not signed_by and policy.require_signature:
        law = "the experiment was approved without a signature, and this site now requires one"
        refuse("approval", "unsigned", law, "approve it again with --signature")
    if signed_by and signed_by not in {known.lower() for known in policy.known_keys}:
        law = f"the key that signed the experiment is no longer one of known_keys in {POLICY}"
        refuse("approval", signed_by[:16], law, "approve it again, signed by a known key")


def _verifies(key: str, signed: str, digest: str) -> bool:
    from cryptography.exceptions import InvalidSignature  # type: ignore[import-not-found,unused-ignore]

    ed25519 = _load_cryptography()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
            bytes.fromhex(signed), PREFIX + digest.encode()
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _load_cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import (  # type: ignore[import-not-found,unused-ignore]
            ed25519,
        )
    except ImportError:
        invalid("signature", "Ed25519", "the package cryptography is not installed", "pip install cryptography")
    return ed25519
