"""Operations on the directories of stopped nodes: backup, inspection, and lowering of a term."""
