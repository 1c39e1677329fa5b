"""Knobs and their values; the recipe that makes a job of them; settings that were found by tuning."""
