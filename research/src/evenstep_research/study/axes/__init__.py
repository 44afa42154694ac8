"""Four axes along which a language model grows: where its best rate goes, and what rules lose by carrying one along."""
