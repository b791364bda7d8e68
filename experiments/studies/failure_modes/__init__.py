"""What kind of failure each wrong answer is: by stated rules, by a judge on request, and by hand, which wins."""
