"""Sessions that this user may come back to: one file each, which holds what only their client knows."""

from __future__ import annotations

import os
import time

from ._errors import InvalidArgumentError, NotFoundError


def _folder():
    from pathlib import Path        # not before there is something to remember
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "tessera" / "sessions"


def remember(session) -> None:
    """So that `connect(resume=session.id)`, or its name, finds it from another process of this user."""
    if session._lease_s <= 0:
        return
    entry = {"address": session.address, "id": session.id, "name": session.name, "resume": session.resume_text,
             "lease_s": session._lease_s, "opened": time.time()}
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{session.id}-{session.resume_text.split(':')[1]}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            import json
            json.dump(entry, file)
        session._remembered = path
    except OSError:
        session._remembered = None   # a home that can't be written to: resume_text is still there


def forget(session) -> None:
    """The error of a session that is closed."""
    path, session._remembered = getattr(session, "_remembered", None), None
    if path is not None:
        path.unlink(missing_ok=True)


def _entries() -> list[tuple]:
    import json
    found = []
    for path in sorted(_folder().glob("*.json")):
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(entry, dict) and isinstance(entry["resume"], str) and float(entry["opened"]) >= 0:
                found.append((entry, path))
        except (OSError, ValueError, KeyError, TypeError):
            continue   # another program's, or one that is being written
    return found


def find(resume, address: str) -> tuple[str, str]:
    """The resume text and the name of a session, by its id, its name or its own resume text."""
    if isinstance(resume, str) and resume.count(":") == 2 and resume.replace(":", "").isdigit():
        secret = resume.split(":")[:2]
        names = [entry.get("name") for entry, _ in _entries() if entry["resume"].split(":")[:2] == secret]
        return resume, names[-1] if names and isinstance(names[-1], str) else ""
    if isinstance(resume, bool) or not isinstance(resume, (int, str)) or resume == "":
        raise InvalidArgumentError(f"connect: resume is {resume!r}; it must be a session, its id, its name or its resume_text")
    entries = [entry for entry, _ in _entries() if entry.get("address") == address]
    matching = [entry for entry in entries if entry.get("id") == resume or entry.get("name") == resume]
    if matching:
        last = max(matching, key=lambda entry: entry["opened"])
        return last["resume"], last["name"] if isinstance(last.get("name"), str) else ""
    known = ", ".join(sorted({str(entry.get("name") or entry.get("id")) for entry in entries})) or "none"
    raise NotFoundError(f"connect: this user has had no session {resume!r} at {address} (there: {known}); from elsewhere "
                        "give its resume_text")
