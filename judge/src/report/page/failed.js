/** Says why the page is empty. */
function failed(error) {
  document.getElementById("page").textContent = `This page could not be drawn: ${error.message}`;
  throw error;
}
