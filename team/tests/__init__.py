"""The tests of the team's modules."""
