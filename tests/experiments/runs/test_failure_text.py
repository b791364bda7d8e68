"""Texts in an answer's place, and what becomes of the requests in a file of responses."""

import json
from pathlib import Path

import pytest

from experiments.runs.responses import Responses, blocked_text, failure_text
from experiments.types import Sample, Status

BLOCKED = [
    "FinishReason.SAFETY", "finish_reason: content_filter", "content_filter", "PROHIBITED_CONTENT",
    "Error code: 400 - {'error': {'message': 'The response was filtered due to the prompt triggering Azure OpenAI's "
    "content management policy', 'code': 'content_filter'}}",
    '{"error": {"code": "content_filter"}}',
]  # fmt: skip
FAILED = ["API RetryError occurred.", "Failed to obtain answer via API.", "Error code: 503", '{"error": "no host"}']
ANSWERS = ["Safety", "Blocked.", "Safety first: wear gloves.", "The finish reason was safety.", "A refusal.",
           "Error code 404 means that a page is missing.", "A content filter blocks pages by their words."]  # fmt: skip


def test_a_blocked_request_a_failed_one_and_an_answer_are_told_apart() -> None:
    assert [text for text in BLOCKED if not blocked_text(text)] == []
    assert [text for text in FAILED if blocked_text(text) or not failure_text(text)] == []
    assert [text for text in ANSWERS if blocked_text(text) or failure_text(text)] == []


@pytest.mark.parametrize(("response", "status", "text", "reason"), [
    (f" {BLOCKED[0]} ", Status.PROVIDER_BLOCKED, "", "text of a blocked request in "),
    (FAILED[0], Status.TRANSPORT_FAILED, "", "text of a failed request in "),
    (None, Status.TRANSPORT_FAILED, "", "null in "), (" ", Status.EMPTY, "", ""), (" No. ", Status.ANSWERED, "No.", ""),
])  # fmt: skip
def test_a_file_of_responses_says_what_became_of_the_request(
    response: str | None, status: Status, text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "web.jsonl"
    path.write_text(json.dumps({"id": "a", "response": response}))
    sample = Sample("a", "benign", "", "comply", "Why?", "Why?", None, "a")
    (_,), found = Responses(str(path)).answers([sample])
    assert (found.texts, found.statuses) == ([text], [status.value])
    assert reason in found.reasons[0]
    assert bool(found.reasons[0]) == bool(reason)
