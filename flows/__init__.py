"""Order of the stages from validation on, and the flows that Prefect deploys: no SQL, no tensors, no thresholds."""
