"""Small helpers that every package may use: none imports anything of Geminga but one of these."""
