"""Tokens as logins: OAuth, AWS IAM, and providers of installed packages."""
