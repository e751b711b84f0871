"""Where text comes from, as streams of pieces of documents."""
