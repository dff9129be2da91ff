"""The optimizers, which share their base, and the choice by `TrainConfig.optimizer`."""
