"""Decisions, pure: policy and inventory in, offers, answers and steps out."""
