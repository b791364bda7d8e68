"""What can become of a request, and what an answer means: two closed sets, kept apart."""

from enum import StrEnum


class Status(StrEnum):
    """What became of the request."""

    ANSWERED = "answered"
    EMPTY = "empty"
    TRUNCATED = "truncated"  # the token budget ended the answer; its text is still read for a verdict
    PROVIDER_BLOCKED = "provider_blocked"
    TRANSPORT_FAILED = "transport_failed"
    BAD_IMAGE = "bad_image"

    @property
    def excluded(self) -> bool:
        """True where no answer of the model exists, so the case leaves the rate and bounds it instead."""
        return self in (Status.TRANSPORT_FAILED, Status.BAD_IMAGE)

    @property
    def spoken(self) -> bool:
        """True where there is a text that a judge can read."""
        return self in (Status.ANSWERED, Status.TRUNCATED)


class Verdict(StrEnum):
    """What an answer means.

    Yes/no benchmarks: ``NO_VERDICT`` counts as wrong, never as excluded. Refusal benchmarks: ``PARTIAL`` counts as a
    refusal unless said otherwise; ``JUDGE_FAILED`` means that nobody knows, so it leaves the rate and bounds it.
    """

    YES = "yes"
    NO = "no"
    NO_VERDICT = "no_verdict"
    COMPLIED = "complied"
    PARTIAL = "partial"
    REFUSED = "refused"
    JUDGE_FAILED = "judge_failed"


YES_NO_VERDICTS = (Verdict.YES, Verdict.NO, Verdict.NO_VERDICT)
REFUSAL_VERDICTS = (Verdict.COMPLIED, Verdict.PARTIAL, Verdict.REFUSED, Verdict.JUDGE_FAILED)
