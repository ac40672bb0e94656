"""Message formats of chat services: Slack, Discord, Telegram and e-mail (GRD-7).

A package of its own, installed by default. It builds on `guard.channels`, which never imports it;
`guard.channel_formats` lists the formats of both.
"""
