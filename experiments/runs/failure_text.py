"""Texts that evaluation tools and gateways leave in an answer's place where a request failed."""

import re

LONGEST = 600  # characters: a model's answer that begins alike goes on
WHAT = r"(api|http|request|connection|server|upstream|gateway|openai)"
# VLMEvalKit's; then an error object, a gateway's page, and what scripts print of a failed request.
KNOWN = re.compile(
    r"failed to obtain answer via api\b"
    r"|\{\s*[\"']error[\"']\s*:"
    r"|<(!doctype )?html\b.{0,300}\b(50[234]|bad gateway|service unavailable|gateway time-?out)\b"
    rf"|{WHAT}[ _]?((api|request|connect) )?(error|timeout|timed out)\b"
    r"|(error|exception)\s*:?\s*((code|status|http)\s*)?:?\s*(429|5\d\d)\b"
    r"|\[(api )?error\]"
    r"|(rate limit|quota) (reached|exceeded)",
    re.IGNORECASE | re.DOTALL,
)


def failure_text(text: str) -> bool:
    """Whether ``text`` is such a text: the model said nothing, so nothing is to be judged."""
    text = text.strip()
    return len(text) <= LONGEST and KNOWN.match(text) is not None
