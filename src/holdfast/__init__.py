"""Holdfast: run what an AI agent asks for inside real OS walls."""
