"""One class per kernel: ``plan(...)`` gives its `LaunchConfig`, a call launches it."""
