"""The demo of the log alone: a real file, the leader killed twice, and the proof."""
