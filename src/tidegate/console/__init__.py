"""The console: a web page and a management HTTP API over nodes, leader and store.

It runs in a process of its own and is a client like any other. Each user of the console logs in at
the broker under the same name, and everything is read and changed over that user's connection. So
the broker's roles are the only ones, and the broker checks them. An attacker who controls the
console can do no more than the users who are logged in.
"""
