# The image: built, built again, compared. Inputs that can be replaced are variables of docker-bake.hcl: docs/image.md.
VARIANT ?= $(LOCK)

.PHONY: wheel base image reproduce debs verify release

wheel: $(STAMP) ## compile DeepSpeed's ops for this .venv into dist/ (minutes; wants g++)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" BUILD_DIR="$(CURDIR)/dist/build" image/deepspeed_wheel.sh $(LOCK) dist

base: ## a Debian root file system, where the base image cannot be pulled
	SOURCE_DATE_EPOCH=$$(sed -n '/"SOURCE_DATE_EPOCH"/s/[^0-9]//gp' docker-bake.hcl) image/base.sh build/base
	@diff -U0 requirements/base.txt build/base/base.txt || \
	  echo "these packages are not those of requirements/base.txt: the mirror has moved on (docs/image.md)"

image: ## build the image (VARIANT=cpu or cuda)
	$(PYTHON) image/build.py image $(VARIANT)

reproduce: ## build the image twice with no cache, and compare
	$(PYTHON) image/build.py reproduce $(VARIANT)

debs: ## save the Debian packages of a build, and lock them
	$(PYTHON) image/build.py bake debs
	image/list_debs.sh build/debs > requirements/debs.txt
	[ ! -e build/base/base.txt ] || cp build/base/base.txt requirements/base.txt

verify: ## build what IMAGE was built from, and compare (IMAGE=name)
	$(PYTHON) image/build.py verify $(IMAGE)

release: ## build with attestations and push
	$(PYTHON) image/build.py bake release
