"""Texts that evaluation tools and gateways leave in an answer's place where a request failed or was blocked."""

import re

LONGEST = 600  # characters: a model's answer that begins alike goes on
WHAT = r"(api|http|request|connection|server|upstream|gateway|openai)"
# VLMEvalKit's; then an error object, a gateway's page, and what scripts print of a failed request.
KNOWN = re.compile(
    r"failed to obtain answer via api\b"
    r"|\{\s*[\"']error[\"']\s*:"
    r"|<(!doctype )?html\b.{0,300}\b(50[234]|bad gateway|service unavailable|gateway time-?out)\b"
    rf"|{WHAT}[ _]?((api|request|connect|retry) ?)?(error|timeout|timed out)\b"
    r"|(error|exception)\s*:?\s*((code|status|http)\s*)?:?\s*(429|5\d\d)\b"
    r"|\[(api )?error\]"
    r"|(rate limit|quota) (reached|exceeded)",
    re.IGNORECASE | re.DOTALL,
)
# finish_reason of the compatible endpoints: OpenAI and Azure, Gemini's own names, Anthropic, Zhipu.
BLOCKED = {
    *("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"),
    *("refusal", "sensitive"),
}
POLICY = re.compile(
    r"content[ _-]?(filter|policy|management)|responsible ?ai|safety (system|settings|polic)|moderation|\bflagged\b"
    r"|prohibited[ _]content|usage polic|acceptable use|blocked (by|due)|block_?reason",
    re.IGNORECASE,
)
# A finish_reason with its name before it, or one that is no ordinary word; an error of the request, which POLICY reads.
_REASON = re.compile(
    rf"(content_filter|prohibited_content|image_safety|finish_?reason[.: =]{{1,2}}({'|'.join(sorted(BLOCKED))}))\W*",
    re.IGNORECASE,
)
_REFUSED_REQUEST = re.compile(
    r"\{\s*[\"']error[\"']\s*:|(error|exception)\s*:?\s*((code|status|http)\s*)?:?\s*4\d\d\b", re.IGNORECASE
)


def blocked_text(text: str) -> bool:
    """Whether ``text`` says that the provider blocked the request ("FinishReason.SAFETY"), and so is no answer."""
    text = text.strip()
    if len(text) > LONGEST:
        return False
    refused = _REFUSED_REQUEST.match(text) is not None and POLICY.search(text) is not None
    return refused or _REASON.fullmatch(text) is not None


def failure_text(text: str) -> bool:
    """Return whether ``text`` reports a failure: the model said nothing, so nothing is judged."""
    text = text.strip()
    return len(text) <= LONGEST and KNOWN.match(text) is not None
