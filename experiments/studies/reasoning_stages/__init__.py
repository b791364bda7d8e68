"""Where over-caution begins: in what is seen, in what is understood to be meant, or in the decision itself."""
