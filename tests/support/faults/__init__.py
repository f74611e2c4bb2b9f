"""What goes wrong from outside: killed processes, full disks, hostile reports, attacks over HTTP."""
