"""Small faults in the heart's decisions, one at a time, and whether ``make test`` finds each.

All faults stand in a copy of the code at once, each asleep until its number is woken. The tests are collected
once and run once without a fault, which says what test comes to which fault; then each fault is woken in a
fork of that process, which runs the tests that come to it, and those that start processes.
"""
