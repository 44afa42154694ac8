"""The report page: one self-contained HTML file that shows plans, searches, checks and studies."""

from evenstep.report.page.writing import write_report

__all__ = ["write_report"]
