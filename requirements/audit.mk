# pip-audit, in an environment of its own. ARGS="-s osv" asks the other database.
.PHONY: audit

audit: .audit/ready ## known vulnerabilities in the locks; where no database answers it says so, and fails with 75
	.audit/bin/python requirements/audit.py $(ARGS)

.audit/ready: requirements/audit.txt
	$(PYTHON) -m venv --clear .audit
	$(subst $(VENV),.audit,$(PIP)) -r $<
	touch $@
