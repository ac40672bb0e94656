"""The Linux sandbox: bubblewrap outside, seccomp, Landlock, cgroups and limits inside."""
