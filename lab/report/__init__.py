"""The report of a comparison: what its tables say, in words, figures and one page that needs nothing else.

    reading         OUT as facts: tables, description and models, nothing else
    csv_rows        rows of a file, or what is wrong with it
    wording         numbers and counts as people write them
    shown_methods   how a method is called and drawn, the same in every figure
    statistics      facts → gains, tests, who gains, equity
    csv_tables      the statistics as CSV files
    prior_facts     models → what the prior holds tight, which sites resemble each other
    prior_words     the same in sentences
    verdict         the opening paragraph: who won where, and where nothing can be said
    pictures        figures as PNG and PDF, or the reason why there is none
    draw_*          one figure or a few of a kind
    page            report.html from its template
    writing         all of it, in order

One direction: reading → statistics → pictures and words → page. Nothing here trains or reads patient rows.
"""
