"""How the offline judge of refusals is trained, and how far refusal judges agree with people."""
