"""How far each mitigation gets, the blinder the verdict is."""
