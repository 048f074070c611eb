# The server and its page, on a CPU:
#   docker build -t covist . && docker run -p 8000:8000 covist
# Everybody who can reach the port can ask. With keys, one per line in the file `keys`:
#   docker run -p 8000:8000 -v "$PWD/keys:/keys:ro" covist covist serve --page --host 0.0.0.0 --api-key-file /keys
# If the default index has only CUDA builds of torch, give PyTorch's index for CPUs: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim

# Only the exact pin of torch resolves to the CPU build; the constraints fix everything else.
WORKDIR /opt/covist
COPY pyproject.toml constraints-page.txt README.md LICENSE ./
COPY src ./src
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint constraints-page.txt torch==2.13.0 '.[page]' \
 && useradd --create-home covist

USER covist
WORKDIR /home/covist
# Must be set before torch starts: some CPUs report bf16 instructions that they do not have.
ENV ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 GRADIO_ANALYTICS_ENABLED=False PYTHONUNBUFFERED=1
# Give the memory of large images back to the system once they have been answered.
ENV MALLOC_MMAP_THRESHOLD_=1048576 MALLOC_TRIM_THRESHOLD_=1048576
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
CMD ["covist", "serve", "--page", "--host", "0.0.0.0"]
