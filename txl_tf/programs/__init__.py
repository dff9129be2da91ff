"""The programs behind `txl`, one file each; `cli` has their flags."""
