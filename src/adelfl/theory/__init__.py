"""The paper's theory and our round noise, one function per term; numpy and scipy only."""
