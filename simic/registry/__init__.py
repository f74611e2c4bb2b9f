"""The policies that were judged, and which of them is champion: MLflow behind one door."""
