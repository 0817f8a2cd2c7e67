"""Topics, groups, consumer offsets and generations: commands in the log, and the state that they make.

`commands` and `records` are what travels; `state` is what every node makes of it; `assignment` and
`coordinator` give the queues to the members of a group, on the master; `proposals` and `membership` are the
thin asynchronous shells.
"""
