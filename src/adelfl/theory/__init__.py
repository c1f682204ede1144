"""The paper's theory, one function per term; numpy and scipy only."""
